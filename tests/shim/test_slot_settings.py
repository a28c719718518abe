"""Which GPU slot a rank sits on: what was said most explicitly, else what its devices say."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from opus_sdn.shim.errors import SettingsError
from opus_sdn.shim.link_settings import links_in
from opus_sdn.shim.slot_settings import normal, slot_in
from opus_sdn.shim.torch_cuda import gpu_names

FOUR = "0000:17:00.0=4,3D:00.0=5,0001:65:00.0=6,GPU-5f1c2d3e-0000-1111-2222-333344445555=7"
UUID = "GPU-5f1c2d3e-0000-1111-2222-333344445555"


class Cuda:
    """As `torch.cuda` shows the GPUs that a process sees."""

    def __init__(self, *buses: int) -> None:
        self._buses = buses

    def is_available(self) -> bool:
        return bool(self._buses)

    def device_count(self) -> int:
        return len(self._buses)

    def get_device_properties(self, index: int) -> object:
        bus = self._buses[index]
        return SimpleNamespace(
            pci_bus_id=bus, pci_device_id=0, pci_domain_id=int(bus == 0x65), uuid=f"u{bus}"
        )


@pytest.mark.parametrize(
    ("environ", "buses", "slot"),
    [
        ({"LOCAL_RANK": "2"}, (), 2),
        # A job on half of the host's GPUs, and one process for each GPU that sees nothing else.
        ({"LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "4,5,6,7"}, (), 5),
        ({"LOCAL_RANK": "3", "CUDA_VISIBLE_DEVICES": "3"}, (), 3),
        ({"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": "6"}, (), 6),
        # No GPU at all, as torch writes it.
        ({"LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "-1"}, (), 1),
        ({"LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": ""}, (), 1),
        # The map goes by what the devices are, however they are numbered here.
        ({"LOCAL_RANK": "1", "OPUS_GPU_MAP": FOUR}, (0x17, 0x3D), 5),
        ({"LOCAL_RANK": "1", "OPUS_GPU_MAP": FOUR}, (0x17, 0x65), 6),
        ({"LOCAL_RANK": "3", "CUDA_VISIBLE_DEVICES": "3", "OPUS_GPU_MAP": FOUR}, (0x3D,), 5),
        ({"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": UUID, "OPUS_GPU_MAP": FOUR}, (), 7),
        # Said outright.
        ({"LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "4,5", "OPUS_GPU_SLOT_MAP": "0:0,1:3"}, (), 3),
        ({"CUDA_VISIBLE_DEVICES": "4,5", "OPUS_GPU_SLOT": "2", "OPUS_GPU_MAP": FOUR}, (), 2),
    ],
)
def test_the_slot_is_what_was_said_most_explicitly(
    environ: dict[str, str], buses: tuple[int, ...], slot: int
) -> None:
    assert slot_in(environ, gpu_names=lambda index: gpu_names(index, Cuda(*buses))) == slot


def test_the_nic_of_the_slot_tells_it_as_well(tmp_path: Path) -> None:
    for device, guid in {"mlx5_2": "e8eb:d303:0032:5f6a", "mlx5_3": "e8eb:d303:0032:5f6b"}.items():
        folder = tmp_path / "class/infiniband" / device
        folder.mkdir(parents=True)
        (folder / "node_guid").write_text(guid + "\n")
    links = links_in({"OPUS_LINKS": "0=rdma:mlx5_2/1,1=rdma:mlx5_3/1,2=eth0,3=rdma:mlx5_9/1"})
    environ = {"LOCAL_RANK": "0", "OPUS_GPU_MAP": "0xe8ebd30300325f6a=3,e8eb:d303:0032:5f6b=3"}
    assert slot_in(environ, links, tmp_path) == 3
    environ["OPUS_GPU_MAP"] = "0xe8ebd30300325f6a=3,e8eb:d303:0032:5f6b=2"
    with pytest.raises(SettingsError, match="are in it with different slots"):
        slot_in(environ, links, tmp_path)


def test_a_map_may_be_a_file_of_a_whole_cluster(tmp_path: Path) -> None:
    file = tmp_path / "gpus"
    file.write_text("# host a\n0000:17:00.0=0\n\n0000:3d:00.0 = 1  # the other one\n")
    environ = {"LOCAL_RANK": "1", "OPUS_GPU_MAP": str(file)}
    assert slot_in(environ, gpu_names=lambda index: gpu_names(index, Cuda(0x17, 0x3D))) == 1


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        (
            {"LOCAL_RANK": "2", "CUDA_VISIBLE_DEVICES": "4,5"},
            "is '4,5', which has no entry for LOCAL_RANK 2",
        ),
        ({"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": UUID}, "set OPUS_GPU_MAP to a map of such names"),
        ({"LOCAL_RANK": "1", "OPUS_GPU_MAP": FOUR}, "none of the names of this rank's GPU and NICs is in it"),
        ({"LOCAL_RANK": "0", "OPUS_GPU_MAP": "17:00.0=0,0000:17:00.0=1"}, "'0000:17:00.0=1' cannot be used"),
        ({"LOCAL_RANK": "0", "OPUS_GPU_MAP": "eth0=0"}, "'eth0=0' cannot be used; use NAME=SLOT pairs"),
        ({"LOCAL_RANK": "0", "OPUS_GPU_MAP": "17:00.0=-1"}, "cannot be used"),
        ({"LOCAL_RANK": "0", "OPUS_GPU_MAP": "17:00.0=5000"}, "cannot be used"),
        ({"LOCAL_RANK": "0", "OPUS_GPU_MAP": "/nowhere"}, "no such file can be read"),
        ({"LOCAL_RANK": "0", "OPUS_GPU_MAP": "gpus"}, "no such file can be read"),
        ({}, "LOCAL_RANK: is not set"),
    ],
)
def test_what_cannot_be_used_is_named(environ: dict[str, str], words: str) -> None:
    with pytest.raises(SettingsError) as refused:
        slot_in(environ)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("00000000:17:00.0", "0000:17:00.0"),
        ("3D:00.0", "0000:3d:00.0"),
        ("0xE8EBD30300325F6A", "e8ebd30300325f6a"),
        ("GPU-ABCDEF00", "gpu-abcdef00"),
    ],
)
def test_a_name_has_one_spelling(name: str, wanted: str) -> None:
    assert normal(name) == wanted


def test_a_gpu_that_is_not_there_has_no_names() -> None:
    assert gpu_names(1, Cuda(0x17)) == []
    assert gpu_names(0, Cuda()) == []
    assert gpu_names(0, Cuda(0x65)) == ["0001:65:00.0", "GPU-u101"]
