"""spark-submit main of the drain step: `drain.py --request <encoded request>`."""

from draindown.jobs import drain_main

if __name__ == "__main__":
    drain_main()
