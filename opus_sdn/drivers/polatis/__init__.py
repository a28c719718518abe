"""HUBER+SUHNER Polatis switches, over RESTCONF or TL1.

What is known of these wires comes from published sources only, and some of it is inference; docs/operating.md
says how sure each part is. The driver therefore reads before it writes, checks conflicts itself, and believes
nothing that it has not read back.
"""
