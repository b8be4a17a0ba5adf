"""What decides the shape of a draft and draws its tokens: one method a module."""
