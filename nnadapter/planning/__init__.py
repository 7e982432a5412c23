"""From a prepared model to a plan: what devices say, what a person demands, where every atom goes, what is admitted.

Values, each made of those before it by functions:

setting      the devices of a session, opened, and what a person demands (`constraints`)
support      the verdict of every device on every atom
judgment     model, support and demands: all that a placement needs to know
placing      a device for every atom, by the session's policy
settling     the placement cut into segments that their devices admit, with the plan
pricing      what a plan costs

`planner` makes them for one model and keeps what shapes share, in the variant of the model that fits its devices
(`variants`).
"""
