"""spark-submit main of the check step: `check.py --request <encoded request>`."""

from draindown.jobs import check_main

if __name__ == "__main__":
    check_main()
