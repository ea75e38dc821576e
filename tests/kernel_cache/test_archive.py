"""Archives: equal for equal modules, and nothing in one can lead anywhere or be half taken."""

import io
import json
import tarfile

import pytest
import zstandard

from sglang_mi300a.errors import UserError
from sglang_mi300a.kernel_cache import archive
from sglang_mi300a.kernel_cache.store import Store
from tests.kernel_cache import standin_aiter
from tests.kernel_cache.conftest import everything, make_key, stored


@pytest.fixture
def packed(store, key, tmp_path):
    stored(store, key, "a", standin_aiter.shared_object(b"a"), "module_a.so")
    stored(store, key, "pa_0f", standin_aiter.shared_object(b"p"), "build/pa_0f/lib.so")
    archive.pack(store, key.digest, tmp_path / "kernels.tar.zst")
    return tmp_path / "kernels.tar.zst"


@pytest.fixture
def other(tmp_path):
    return Store(tmp_path / "other")


def test_an_archive_carries_every_module_to_another_store(packed, store, other, key):
    contents = archive.unpack(packed, other, expected=key)
    assert len(contents.modules) == 2
    assert other.modules(key.digest) == store.modules(key.digest)
    assert everything(other.root) == everything(store.root)
    assert archive.inspect(packed) == contents


def test_equal_modules_give_equal_archives_that_any_tar_reads(packed, other, key, tmp_path):
    archive.unpack(packed, other, expected=None)
    archive.pack(other, key.digest, tmp_path / "again.tar.zst")
    assert (tmp_path / "again.tar.zst").read_bytes() == packed.read_bytes()
    with tarfile.open(fileobj=io.BytesIO(plain(packed))) as tar:
        members = tar.getmembers()
    assert [(one.name, one.mode, one.uid, one.mtime) for one in members] == [
        ("manifest.json", 0o644, 0, 0),
        ("files/build/pa_0f/lib.so", 0o755, 0, 0),
        ("files/module_a.so", 0o755, 0, 0),
    ]


def test_modules_of_another_key_are_refused_by_what_differs(packed, other):
    mine = make_key(rocm="6.4.3", python="cpython-311-x86_64-linux-gnu")
    with pytest.raises(
        UserError,
        match="rocm: 6.4.3 here, 7.0.1 there; python: cpython-311-x86_64-linux-gnu here, cpython-3",
    ):
        archive.unpack(packed, other, expected=mine)
    assert list(other.digests()) == []


def test_a_damaged_module_is_not_packed(store, key, tmp_path):
    module = stored(store, key, "a", standin_aiter.shared_object(b"a"))
    path = store.object_path(module.files[0].sha256)
    path.chmod(0o644)
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="other bytes than were stored"):
        archive.pack(store, key.digest, tmp_path / "out.tar.zst")
    assert not list(tmp_path.glob("*out.tar.zst*"))


def test_a_key_without_modules_is_not_packed(store, key, tmp_path):
    store.publish(key, [])
    with pytest.raises(UserError, match="no modules of key"):
        archive.pack(store, key.digest, tmp_path / "out.tar.zst")


# -- archives that were changed --------------------------------------------------------------------


def refused(path, other, **options):
    """Unpack, which must be refused; return why. No module may belong to a key then."""
    with pytest.raises(UserError) as told:
        archive.unpack(path, other, expected=None, **options)
    assert [key for key in other.digests() if other.modules(key)] == []
    assert list((other.root / "tmp").iterdir()) == []
    return str(told.value)


@pytest.mark.parametrize("kept", [0.0, 0.001, 0.1, 0.5, 0.9, 0.99])
def test_a_cut_archive_is_refused(packed, other, kept):
    content = packed.read_bytes()
    packed.write_bytes(content[: int(len(content) * kept)])
    assert "an early end" in refused(packed, other)


@pytest.mark.parametrize("num_bytes", [1, 2, 3, 4, 5])
def test_an_archive_that_lacks_the_last_bytes_of_its_checksum_is_refused(packed, other, num_bytes):
    packed.write_bytes(packed.read_bytes()[:-num_bytes])
    assert "an early end" in refused(packed, other)


def test_any_flipped_bit_that_changes_anything_is_refused(packed, store, tmp_path):
    content = packed.read_bytes()
    accepted = []
    for at in range(0, len(content), max(1, len(content) // 150)):
        flipped = bytearray(content)
        flipped[at] ^= 1 << (at % 8)
        packed.write_bytes(flipped)
        other = Store(tmp_path / f"other-{at}")
        try:
            archive.unpack(packed, other, expected=None)
        except UserError:
            assert list(other.digests()) == []
        else:
            accepted.append(at)
            assert everything(other.root) == everything(store.root)
    assert len(accepted) < 10  # a few bits of a zstd frame mean nothing


def test_bytes_after_its_end_are_refused(packed, other):
    packed.write_bytes(packed.read_bytes() + b"\0")
    assert "bytes after its end" in refused(packed, other)
    packed.write_bytes(packed.read_bytes()[:-1] * 2)
    assert "bytes after its end" in refused(packed, other)


def plain(path):
    return zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes())


def rewritten(packed, change):
    """Pack the members again after ``change`` has had its way with them."""
    with tarfile.open(fileobj=io.BytesIO(plain(packed))) as tar:
        members = [(one, tar.extractfile(one).read()) for one in tar.getmembers()]
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, content in change(members):
            info.size = len(content) if info.isreg() else 0
            tar.addfile(info, io.BytesIO(content))
    packed.write_bytes(zstandard.ZstdCompressor(write_checksum=True).compress(out.getvalue()))


def member(name="files/module_a.so", kind=tarfile.REGTYPE, mode=0o755, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.linkname = kind, mode, link
    return info


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (member("/etc/cron.d/x"), "'/etc/cron.d/x'"),
        (member("files/../../x"), "'files/../../x'"),
        (member("files/none.so"), "'files/none.so'"),
        (member(kind=tarfile.SYMTYPE, link="/etc/passwd"), "link '/etc/passwd'"),
        (member(kind=tarfile.LNKTYPE, link="manifest.json"), "link 'manifest.json'"),
        (member(kind=tarfile.FIFOTYPE), "tar type b'6'"),
        (member(kind=tarfile.CHRTYPE), "tar type b'3'"),
        (member(kind=tarfile.DIRTYPE), "tar type b'5'"),
        (member(mode=0o4755), "mode 4755"),
        (member(mode=0o2755), "mode 2755"),
        (member(mode=0o777), "mode 0777"),
        (member("files/" + "x" * 300), "tar type b'x'"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.name[:20],
)
def test_a_member_that_leads_elsewhere_is_refused_and_written_nowhere(
    packed, other, tmp_path, bad, says
):
    def change(members):
        return [members[0], (bad, members[1][1]), *members[1:]]

    rewritten(packed, change)
    before = set(everything(tmp_path)) - set(everything(other.root))
    assert says in refused(packed, other)
    after = {name for name in everything(tmp_path) if not name.startswith("other/")}
    assert after == before


def test_another_order_a_missing_and_a_surplus_member_are_refused(packed, other):
    original = packed.read_bytes()
    for change, says in (
        (lambda members: members[1:], "first member"),
        (lambda members: [members[0], members[2], members[1]], "as its manifest says"),
        (lambda members: members[:2], "no tar member"),
        (lambda members: [*members, members[2]], "more than its manifest says"),
    ):
        packed.write_bytes(original)
        rewritten(packed, change)
        assert says in refused(packed, other)


def test_another_files_bytes_are_refused(packed, other):
    def change(members):
        members[1] = (members[1][0], standin_aiter.shared_object(b"q"))
        return members

    rewritten(packed, change)
    assert "files/build/pa_0f/lib.so with SHA-256" in refused(packed, other)


def with_manifest(packed, change, *, hashed):
    """Change the manifest, and its own hash too if that is wanted."""

    def rewrite(members):
        data = json.loads(members[0][1])
        change(data)
        if hashed:
            del data["sha256"]
            data["sha256"] = archive._hash(data)
        members[0] = (members[0][0], json.dumps(data).encode())
        return members

    rewritten(packed, rewrite)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda data: data["key"].update(rocm="9.9"), "key digest"),
        (lambda data: data["key"].update(extra=1), "no key"),
        (lambda data: data["key"].update(num_cus="many"), "values of another type"),
        (lambda data: data.update(schema=9), "schema 1"),
        (lambda data: data.update(modules=5), "key digest"),
        (lambda data: data["modules"].append(data["modules"][0]), "two files at one path"),
        (lambda data: data["modules"][0].update(name="../up"), "name '../up'"),
        (lambda data: data["modules"][0]["files"][0].update(path="/up"), "path '/up'"),
        (lambda data: data["modules"][0]["files"][0].update(num_bytes=7), "of 7 bytes"),
    ],
    ids=range(9),
)
def test_a_manifest_that_lies_is_refused(packed, other, change, says):
    original = packed.read_bytes()
    with_manifest(packed, change, hashed=True)
    assert says in refused(packed, other)
    packed.write_bytes(original)
    with_manifest(packed, change, hashed=False)
    assert refused(packed, other)


def zeros(num_bytes):
    block = b"\0" * (1 << 20)
    compressor = zstandard.ZstdCompressor().compressobj()
    parts = [compressor.compress(block) for _ in range(num_bytes >> 20)]
    return b"".join([*parts, compressor.flush()])


def test_ten_gigabytes_of_zeros_are_refused_at_the_first_block(tmp_path, other):
    bomb = tmp_path / "bomb.tar.zst"
    bomb.write_bytes(zeros(10 << 30))
    assert bomb.stat().st_size < 4 << 20
    assert "no tar member" in refused(bomb, other)


def test_more_than_allowed_is_refused_before_it_is_written(packed, other):
    assert "raise --max-bytes" in refused(packed, other, max_bytes=1000)


def test_a_module_that_says_it_is_huge_is_refused_by_number(packed, other):
    def change(data):
        data["modules"][0]["files"][0].update(num_bytes=10 << 30)

    with_manifest(packed, change, hashed=True)
    assert f"at most {archive.DEFAULT_MAX_BYTES}" in refused(packed, other)


def test_a_manifest_that_says_it_is_huge_is_refused(tmp_path, other):
    info = tarfile.TarInfo("manifest.json")
    info.size = 10 << 30
    path = tmp_path / "bomb.tar.zst"
    path.write_bytes(zstandard.ZstdCompressor().compress(info.tobuf(tarfile.GNU_FORMAT)))
    assert "first member 'manifest.json' of 10737418240 bytes" in refused(path, other)


def test_a_file_that_is_no_archive_or_is_not_there_is_refused(tmp_path, other):
    (tmp_path / "text").write_text("hello\n" * 1000)
    assert "damaged" in refused(tmp_path / "text", other)
    assert "No such file" in refused(tmp_path / "none", other)
