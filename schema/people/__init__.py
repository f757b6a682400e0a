"""People in the loop (protocol §13): what turns ask people, and what people answer."""
