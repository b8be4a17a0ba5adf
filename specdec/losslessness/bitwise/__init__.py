"""The bitwise proof: every token equal to plain decoding's."""
