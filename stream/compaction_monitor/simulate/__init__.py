"""The two observed runs, by mechanics: agents that really compact, and report what they do like any other agent.

`researcher` is an agent whose scorer comes to prefer summaries to evidence; `keeper` keeps a hierarchy of checkpoints in
which a root cannot hold what is below it. Nothing in either is scripted: series come out, they do not go in.
Needs the extra `[simulate]`.
"""
