"""The shipped network keeps its promises, and torchvision loads beside any build of torch."""

import sys
from importlib import resources

import pytest
import torch
from torch import nn

from upscale.zoo import (
    DigitsNet,
    MissingPackageError,
    UnknownModelError,
    digits,
    digits_data,
    import_torchvision,
    torchvision_model,
)

SIZE_LIMIT_BYTES = 500_000


def masked_by_l2(model: nn.Module, amount: float) -> nn.Module:
    """Zero, in each layer, the given share of input channels with the smallest L2 norm."""
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            norms = layer.weight.detach().transpose(0, 1).flatten(1).norm(dim=1)
            dropped = norms.argsort()[: int(amount * len(norms))]
            with torch.no_grad():
                layer.weight[:, dropped] = 0
    return model


def accuracy(model: nn.Module) -> float:
    data = digits_data()
    with torch.inference_mode():
        predictions = model(data.held_out_images).argmax(1)
    return float((predictions == data.held_out_labels).float().mean())


def test_digits_classifies_at_least_98_percent_of_held_out_images() -> None:
    assert accuracy(digits()) >= 0.98


def test_digits_still_classifies_after_30_percent_of_each_layers_inputs_are_masked() -> None:
    assert accuracy(masked_by_l2(digits(), 0.3)) >= 0.9


def test_no_layer_of_digits_is_dead() -> None:
    for name, layer in digits().named_modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            norms = layer.weight.detach().transpose(0, 1).flatten(1).norm(dim=1)
            assert norms.count_nonzero() > 0, name


def test_the_weights_file_is_under_500_kb() -> None:
    weights = resources.files("upscale") / "data" / "digits.safetensors"
    assert len(weights.read_bytes()) < SIZE_LIMIT_BYTES


def test_digits_returns_the_same_network_every_time_and_shares_nothing() -> None:
    first, second = digits(), digits()
    assert not first.training
    for (name, one), other in zip(
        first.state_dict().items(), second.state_dict().values(), strict=True
    ):
        assert torch.equal(one, other), name
        assert one.data_ptr() != other.data_ptr(), name


def test_digits_traces_to_a_graph_that_computes_the_same() -> None:
    model, images = digits(), digits_data().held_out_images[:8]
    assert torch.equal(torch.fx.symbolic_trace(model)(images), model(images))


def test_digits_accepts_other_image_sizes() -> None:
    assert digits()(torch.zeros(3, 1, 12, 16)).shape == (3, 10)


def test_the_split_holds_out_a_fifth_and_never_moves() -> None:
    data = digits_data()
    assert data.train_images.shape == (1438, 1, 8, 8)
    assert data.held_out_images.shape == (359, 1, 8, 8)
    assert data.held_out_labels[:10].tolist() == [2, 8, 2, 6, 6, 7, 1, 9, 8, 5]
    assert float(data.train_images.min()) == 0
    assert float(data.train_images.max()) == 1


def test_a_fresh_network_has_the_shipped_networks_shapes() -> None:
    fresh = {name: value.shape for name, value in DigitsNet().state_dict().items()}
    shipped = {name: value.shape for name, value in digits().state_dict().items()}
    assert fresh == shipped


def test_torchvision_classifiers_work_and_arrive_in_evaluation_mode() -> None:
    model = torchvision_model("squeezenet1_1", num_classes=7)
    assert not model.training
    with torch.inference_mode():
        assert model(torch.zeros(1, 3, 64, 64)).shape == (1, 7)


def test_importing_torchvision_twice_gives_one_module() -> None:
    assert import_torchvision() is import_torchvision()


def test_an_unknown_torchvision_model_is_named_in_the_error() -> None:
    with pytest.raises(UnknownModelError, match="no_such_model"):
        torchvision_model("no_such_model")


def test_a_missing_package_is_named_with_the_way_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingPackageError, match="pip install"):
        digits_data()
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(MissingPackageError, match="pip install torchvision"):
        import_torchvision()
