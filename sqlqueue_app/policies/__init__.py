"""Rules as plain arithmetic: ramp-up, back-off, recoverability, transaction modes. No clock, no thread, no database."""
