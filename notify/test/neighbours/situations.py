"""What neighbours do with watched tables and with notifications."""
ALL = []
