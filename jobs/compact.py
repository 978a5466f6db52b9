"""spark-submit main of the compact step: `compact.py --request <encoded request>`."""

from draindown.jobs import compact_main

if __name__ == "__main__":
    compact_main()
