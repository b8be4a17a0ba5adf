"""What was measured and what it means: costs of forwards, acceptance of drafts, calibration on the way."""
