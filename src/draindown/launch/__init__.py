"""Starting a JVM: Spark settings as text, and checks of the JVM itself. No Spark session."""
