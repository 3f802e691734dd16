"""What the driver hears from its home, the inbox, and what it tells there, the journal."""
