"""What turns ask people, and what people decide (protocol §13)."""
