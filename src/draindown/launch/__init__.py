"""How a JVM is started: Spark settings as text, and questions to the JVM itself. No Spark session."""
