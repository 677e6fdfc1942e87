"""Evidence, on a user's own policy and device, that drafted rollouts are drawn from the policy.

`verdict.examine` runs it all; the other modules hold one question each.
"""
