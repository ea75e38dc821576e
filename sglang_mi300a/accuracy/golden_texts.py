"""Texts whose continuations are computed once and asked of each server.

Prose, numbers, code and other scripts, so that tokens, experts and heads of all kinds take part.
Some are predictable all along: there a right server goes on word for word.
"""

PROMPT_TOKENS = 32
"""Tokens of each text that are the prompt."""
NEXT_TOKENS = 8
"""Tokens after it that a server may have to go on with."""

TEXTS = (
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty twenty-one twenty-two twenty-three twenty-four "
    "twenty-five twenty-six twenty-seven twenty-eight twenty-nine thirty thirty-one thirty-two "
    "thirty-three thirty-four thirty-five thirty-six thirty-seven thirty-eight thirty-nine forty",
    "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday, Monday, Tuesday, Wednesday, "
    "Thursday, Friday, Saturday, Sunday, Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, "
    "Sunday, Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday, Monday, Tuesday",
    "def sum_of_squares(values):\n    total = 0\n    for value in values:\n"
    "        total += value * value\n    return total\n\n\n"
    "def sum_of_cubes(values):\n    total = 0\n    for value in values:\n"
    "        total += value * value * value\n    return total\n\n\n"
    "def mean(values):\n    return sum(values) / len(values)\n",
    '{"name": "north", "width": 12, "height": 7}\n{"name": "east", "width": 9, "height": 7}\n'
    '{"name": "south", "width": 12, "height": 7}\n{"name": "west", "width": 9, "height": 7}\n'
    '{"name": "north", "width": 12, "height": 7}\n{"name": "east", "width": 9, "height": 7}\n',
    "The river had risen in the night, and by the time the ferryman came down to the landing the "
    "lowest step was gone. He stood there for a while with his hands in his pockets, watching a "
    "branch turn slowly in the brown water, and thought that nobody would want to cross today.",
    "Das Wasser kocht bei hundert Grad, im Gebirge schon bei weniger, weil dort der Luftdruck "
    "geringer ist. Wer auf dreitausend Metern Nudeln kocht, muss deshalb länger warten als am "
    "Meer, und wer einen Topf mit dichtem Deckel hat, ist im Vorteil.",
    "春天来了。山上的雪慢慢融化。小河里的水一天比一天多。孩子们放学以后跑到河边。"
    "他们把纸折的小船放进水里。谁的船漂得最远。"
    "老人坐在桥上。他一边晒太阳一边看着孩子们笑。到了傍晚大家一起回家吃饭。",
    "The integral of x^2 from 0 to 3 is 9, since an antiderivative of x^2 is x^3/3 and 27/3 = 9. "
    "The integral of x^3 from 0 to 2 is 4, since an antiderivative of x^3 is x^4/4 and 16/4 = 4. "
    "The integral of x^4 from 0 to 1 is 1/5, since an antiderivative of x^4 is x^5/5.",
)
