"""`python -m compaction_monitor`: the same as the command."""

from compaction_monitor.cli import main

if __name__ == "__main__":
    main()
