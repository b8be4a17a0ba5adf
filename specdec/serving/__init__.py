"""An HTTP server with OpenAI's interface: one thread decodes, requests join its batch and leave it."""
