"""An agent to try the monitor on: it compacts a working set of its own making, badly, reports it, and obeys orders.

Its scorer is cosine to the task, and every pass keeps what scores best: that ends in a salience inversion within
four passes. The texts do not exist, but tokens, provenance and scores are real ones of a real set.

```
python -m compaction_monitor.example_agent --every-s 2          a pass every two seconds, orders obeyed in the same process
python -m compaction_monitor.example_agent --listen 7001        a pass for every POST to http://127.0.0.1:7001/compact
python -m compaction_monitor.example_agent --obey-for 7001      a controller, as a process of its own, for the one that listens
```
"""
