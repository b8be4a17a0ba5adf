"""Draft heads as torch modules: EAGLE-1/2 and EAGLE-3. No transformers, no decoding."""
