"""What the demo asks every server, asked of one that other tests have started."""

from sglang_mi300a.demo import conversation, serving
from sglang_mi300a.demo.account import Account
from sglang_mi300a.demo.counts import faults_of
from tests.serving.test_tokens import on


@on("tuned TP 2")
def test_the_demos_script_is_answered_as_transformers_does_with_drafts_and_cached_prompts(
    served, models, monkeypatch
):
    monkeypatch.setattr(conversation, "NUM_SESSIONS", 2)
    monkeypatch.setattr(conversation, "NUM_AT_ONCE", 3)
    server, _ = served
    script = conversation.Writer(models(echo=True)).write()
    account = Account("tuned", "", "E0")
    counts = serving.ask(server, script, "tuned", account)
    assert list(faults_of(counts, drafts=True)) == []
    assert counts.tokens_compared == script.num_tokens == 12 * conversation.NUM_TOKENS
    assert counts.decode_passes < counts.sessions_tokens - 6
    assert counts.prefill_passes <= 6
    assert len(account.pieces) == 3
