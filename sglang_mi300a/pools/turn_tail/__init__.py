"""TurnTail: which linear-attention states the prefix cache keeps when slots run out.

A hybrid model's cached conversation is worth nothing without a *snapshot*, a copy of its state at
one position, and a snapshot costs as much memory as some 1,500 to 3,000 tokens of KV. Stock evicts
the snapshot least recently inserted or matched. In multi-turn traffic each turn leaves two: one
near the prompt's end, which the next turn continues from, and a younger one inside the reply, which
it does not match when replies are rendered anew. So the useless one outlives the useful one.

TurnTail keeps stock's least-recently-used order and its walk, and changes where snapshots stand in
it:

1. A snapshot is *superseded* once a deeper one on the same path exists; it goes first. Forks, where
   several conversations continue, are excepted; so is the one before a snapshot that may turn out
   to lie in tokens which the next turn renders differently.
2. When a request ends, the snapshot of its own prompt becomes the most recent: a conversation's
   rest begins with the reply's end, not with its prompt.
3. Snapshots inside replies are stored only while they are ever matched; one in 32 always is, to
   learn. One that the next turn passes by goes first. Once nearly all next turns continue from
   them, they supersede their prompts' snapshots.
4. A request that finds KV but no snapshot, because the conversation's was evicted or lies a few
   tokens too deep, takes its own at the prompt's end. Stock would take it where the KV ends, so
   that the next turn misses again.
5. Optional: the snapshot keeps a margin of 8 tokens to the prompt's end, whose last tokens (the
   generation prompt) are rendered differently in the next turn.
6. Conversations that come to rest after a number of turns after which next to none returned go
   first; and where slots are too few for all, which shows in conversations that return too late,
   so do those whose snapshots save the fewest tokens.

Decisions use counters only: no clock, no object identity, nothing random. Ranks that are fed the
same requests therefore evict the same states.
"""
