"""What parts are and say: abstract classes, declarations, who fits whom, and what they hand to each other."""
