"""Accelerators are read from a recorded sysfs tree."""

import pytest

from sglang_mi300a import device


@pytest.fixture
def sysfs(tmp_path):
    """Return a function that records amdkfd nodes: dicts of properties, None = unreadable."""

    def record(*nodes, numa=None):
        for index, properties in enumerate(nodes):
            node = tmp_path / f"class/kfd/kfd/topology/nodes/{index}"
            node.mkdir(parents=True)
            if properties is not None:
                lines = [f"{key} {value}\n" for key, value in properties.items()]
                (node / "properties").write_text("".join(lines))
        for address, node in (numa or {}).items():
            pci = tmp_path / "bus/pci/devices" / address
            pci.mkdir(parents=True)
            (pci / "numa_node").write_text(f"{node}\n")
        return tmp_path

    return record


CPU = {"cpu_cores_count": 24, "simd_count": 0, "gfx_target_version": 0}


def apu(bus, domain=0, cus=228):
    return {
        "simd_count": cus * 4,
        "simd_per_cu": 4,
        "gfx_target_version": 90402,
        "device_id": 0x74A0,
        "location_id": bus << 8,
        "domain": domain,
    }


def test_a_node_of_four_mi300a_is_four_apus_each_on_its_numa_node(sysfs):
    root = sysfs(
        CPU, CPU, CPU, CPU, apu(1), apu(1, 1), apu(1, 2), apu(1, 3),
        numa={"0000:01:00.0": 0, "0001:01:00.0": 1, "0002:01:00.0": 2, "0003:01:00.0": 3},
    )  # fmt: skip
    found = device.accelerators(root)
    assert [d.numa_node for d in found] == [0, 1, 2, 3]
    assert {(d.name, d.arch, d.num_visible_cus, d.is_apu) for d in found} == {
        ("AMD Instinct MI300A", "gfx942", 228, True)
    }


def test_an_mi300x_is_gfx942_too_but_no_apu(sysfs):
    [found] = device.accelerators(sysfs(CPU, {**apu(3, cus=304), "device_id": 0x74A1}))
    assert (found.arch, found.is_apu, found.num_visible_cus) == ("gfx942", False, 304)


def test_a_machine_without_the_driver_and_a_hidden_node_have_no_accelerator(sysfs, tmp_path):
    assert device.accelerators(tmp_path / "nothing") == []
    assert device.accelerators(sysfs(CPU, None)) == []


@pytest.mark.parametrize(
    ("version", "name"), [(90402, "gfx942"), (90010, "gfx90a"), (110000, "gfx1100")]
)
def test_arch_names_follow_the_drivers_number(version, name):
    assert device.arch_name(version) == name


def test_the_target_is_the_cpu_engine_where_asked_else_gfx942_else_none(sysfs):
    found = device.accelerators(sysfs(apu(1)))
    assert device.target_device(cpu_engine=False, found=found) == "gfx942"
    assert device.target_device(cpu_engine=True, found=[]) == "cpu"
    assert device.target_device(cpu_engine=False, found=[]) is None
