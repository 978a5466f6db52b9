"""What a history table says of a time. No JVM."""
