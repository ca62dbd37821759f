"""The fault campaign of the Spark pipeline: everything that can die is killed while messages flow, then every message is counted.

`campaign` runs it; `driver` is the Spark driver that is killed; `hooks` are the named points; `plan` says what is killed where;
`publisher` sends; `broker` keeps the broker up; `check` counts; `scenes` are checkpoints that were lost, old or used twice.
"""
