"""One interface to run things elsewhere: in this process, in processes of this machine, on many machines.

engines     what workers are: tasks, shared values and payloads in; results out, in order, each exactly once
parcels     how tasks and values travel: functions by name, tensors as plain memory, never a closure
processes   processes of this machine (joblib)
cluster     many machines (Ray)
threads     what this process does itself while they wait
choice      workers by what a person writes
simulators  parts of many simulators as payloads; their episodes come back counted

A payload is everything that its result is a function of, so that whoever does it, and however often, the bits are the
same. What is cut into parts is cut the same way for any number of workers.
"""
