"""Messages, generated when the wheel is built."""
