"""One trainer in several processes (ranks).

``launch`` starts them, ``meeting`` lets them find each other, ``ranks`` has their collective calls, ``watch`` ends them
when one is gone, ``interrupt`` stops them together, and ``states`` stores sharded tensors.
"""
