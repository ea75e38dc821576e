"""Why a program was stopped: one exception a reason."""


class Fault(AssertionError):
    """A program did what it must not do.

    Attributes:
        pc: Address of the instruction.
        text: The instruction.
        lane: The lane, or -1 if it concerns the wave.
        wave: The wave's number in its workgroup.
        workgroup: The workgroup's number in the grid.
        address: Of the memory access, or 0.
        other_pc: Of the load not waited for or of the access raced with, or -1.
    """

    def __init__(self, message: str, **facts) -> None:
        """Keep the facts as attributes."""
        super().__init__(message)
        self.pc: int = facts["pc"]
        self.text: str = facts["text"]
        self.lane: int = facts["lane"]
        self.wave: int = facts["wave"]
        self.workgroup: int = facts["workgroup"]
        self.address: int = facts["address"]
        self.other_pc: int = facts["other_pc"]


class UnknownInstruction(Fault):
    """The interpreter has no semantics for this instruction, or not for this use of it."""


class OutOfBounds(Fault):
    """An access outside every buffer, LDS or scratch."""


class ReadOnly(Fault):
    """A store to the kernel's arguments or to its code."""


class Misaligned(Fault):
    """An atomic or scalar access to an address that is no multiple of its size."""


class ReadBeforeWait(Fault):
    """A register was read while a load into it was not waited for."""


class WrittenBeforeWait(Fault):
    """A register was written while a load into it was not waited for."""


class BadBranch(Fault):
    """Control went where no instruction starts."""


class InstructionLimit(Fault):
    """The launch executed more instructions than allowed: most likely an endless loop."""


class LdsRace(Fault):
    """Two waves used a word of LDS, one of them writing, without a barrier between."""


BY_NAME = {kind.__name__: kind for kind in Fault.__subclasses__()}
