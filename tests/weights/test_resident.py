"""The bytes a rank will hold are known before it holds them."""

from sglang_mi300a.weights import resident
from sglang_mi300a.weights.plan import Placement
from tests.weights.test_filling import loaded_from_checkpoint


def test_checkpoint_and_artifact_say_the_same_and_it_is_what_is_loaded(small, small_tp2):
    for rank in range(2):
        at = Placement(2, 1, rank)
        found = resident.of_model(small, at)
        assert found == resident.of_model(small_tp2, at)
        for part, expected in found.items():
            loaded, _ = loaded_from_checkpoint(small, at, part)
            assert expected.stored == sum(data.nbytes for data in loaded.values())
        # 256 padded tokens over two ranks, 128 wide, two bytes, embedding and head.
        assert (found["target"].lent, found["draft"].lent) == (0, 2 * 128 * 128 * 2)
