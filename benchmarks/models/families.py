"""Public families in small configurations with random weights, of torchvision and transformers: for benchmarks only.

Built from their libraries' own classes, with few channels, layers and pixels. Batch norms get statistics of random images,
so that values stay in range through a network without training.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from models.entries import Entry
from torch import nn

FAMILIES: list[Entry] = []


def add(name: str, make: Callable[[], nn.Module], *shapes: tuple[int, ...], kind: str = "normal") -> None:
    FAMILIES.append(Entry(f"family.{name}", "family", make, shapes, kind))


def settled(module: nn.Module, *shapes: tuple[int, ...]) -> nn.Module:
    """The module in evaluation mode, its batch norms with the statistics of random inputs."""
    for parameter in module.parameters():
        if parameter.dim() > 1 and not bool(parameter.any()):
            nn.init.normal_(parameter, std=0.1)  # a head that starts at zero would say nothing
    norms = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    if norms:
        for norm in norms:
            norm.momentum = None
        module.train()
        with torch.no_grad():
            module(*(torch.randn(32, *shape) for shape in shapes))
    return module.eval()


class Part(nn.Module):
    """What a transformer of `transformers` computes from vectors: one tensor of its output."""

    def __init__(self, model: nn.Module, **given: Any) -> None:
        super().__init__()
        self.model, self.given = model, given

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.model(inputs_embeds=x, **self.given)
        return out.logits if hasattr(out, "logits") else out.last_hidden_state


class Image(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.model(pixel_values=x)
        return out.logits if hasattr(out, "logits") else out.last_hidden_state


# ---------------------------------------------------------------------------------------------- torchvision

SMALL = (3, 16, 16)


def _vision(build: Callable[[Any], nn.Module], shape: tuple[int, ...] = SMALL) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import torchvision

        return settled(build(torchvision.models), shape)

    return make


def _resnet(models: Any, block: str, **options: Any) -> nn.Module:
    net = models.resnet.ResNet(getattr(models.resnet, block), [1, 1, 1, 1], num_classes=4, **options)
    return _narrow(net)


def _googlenet() -> Any:
    # Within torchvision.models a function has the name of the module.
    return importlib.import_module("torchvision.models.googlenet")


def _narrow(net: nn.Module, factor: int = 8) -> nn.Module:
    """The same network with an eighth of the channels."""

    def shrink(count: int) -> int:
        return count if count <= 4 else max(1, count // factor)

    for holder in net.modules():
        for name, layer in list(holder.named_children()):
            made: nn.Module | None = None
            if isinstance(layer, nn.Conv2d):
                ins, outs = shrink(layer.in_channels), shrink(layer.out_channels)
                groups = 1 if layer.groups == 1 else (ins if layer.groups == layer.in_channels else 1)
                made = nn.Conv2d(
                    ins,
                    outs,
                    layer.kernel_size,  # type: ignore[arg-type]
                    layer.stride,  # type: ignore[arg-type]
                    layer.padding,  # type: ignore[arg-type]
                    layer.dilation,  # type: ignore[arg-type]
                    groups,
                    layer.bias is not None,
                )
            elif isinstance(layer, nn.BatchNorm2d):
                made = nn.BatchNorm2d(shrink(layer.num_features))
            elif isinstance(layer, nn.Linear):
                outs = layer.out_features if layer.out_features <= 10 else shrink(layer.out_features)
                made = nn.Linear(shrink(layer.in_features), outs)
            if made is not None:
                setattr(holder, name, made)
    return net


add("resnet_basic", _vision(lambda m: _resnet(m, "BasicBlock")), SMALL)
add("resnet_bottleneck", _vision(lambda m: _resnet(m, "Bottleneck")), SMALL)
add("wide_resnet", _vision(lambda m: _resnet(m, "Bottleneck", width_per_group=128)), SMALL)
add(
    "vgg_bn",
    _vision(
        lambda m: _narrow(
            nn.Sequential(m.vgg.make_layers([64, "M", 128, "M", 256], True), nn.Flatten(), nn.Linear(4096, 4))
        )
    ),
    SMALL,
)
add("alexnet", _vision(lambda m: _narrow(m.AlexNet(num_classes=4, dropout=0.0)), (3, 63, 63)), (3, 63, 63))
add(
    "squeezenet",
    _vision(lambda m: nn.Sequential(*list(_narrow(m.SqueezeNet("1_1", 4)).features)[:5]), (3, 20, 20)),
    (3, 20, 20),
)
add("densenet", _vision(lambda m: m.DenseNet(4, (1, 1), 8, num_classes=4)), SMALL)
add(
    "mobilenet_v2",
    _vision(lambda m: m.MobileNetV2(4, inverted_residual_setting=[[1, 8, 1, 1], [2, 8, 1, 2]], width_mult=0.25)),
    SMALL,
)
add(
    "mobilenet_v3_block",
    _vision(
        lambda m: m.mobilenetv3.InvertedResidual(
            m.mobilenetv3.InvertedResidualConfig(8, 3, 16, 8, True, "HS", 1, 1, 1), nn.BatchNorm2d
        ),
        (8, 8, 8),
    ),
    (8, 8, 8),
)
add("mnasnet_block", _vision(lambda m: m.mnasnet._InvertedResidual(8, 8, 3, 1, 2), (8, 8, 8)), (8, 8, 8))
add(
    "efficientnet_block",
    _vision(
        lambda m: m.efficientnet.MBConv(m.efficientnet.MBConvConfig(2, 3, 1, 8, 8, 1), 0.0, nn.BatchNorm2d), (8, 8, 8)
    ),
    (8, 8, 8),
)
add("shufflenet_unit", _vision(lambda m: m.shufflenetv2.InvertedResidual(8, 8, 1), (8, 8, 8)), (8, 8, 8))
add("googlenet_inception", _vision(lambda m: _googlenet().Inception(8, 4, 4, 4, 2, 4, 4), (8, 6, 6)), (8, 6, 6))
add("inception_v3_a", _vision(lambda m: _narrow(m.inception.InceptionA(8, 8)), (1, 6, 6)), (1, 6, 6))
add(
    "regnet_block",
    _vision(lambda m: m.regnet.ResBottleneckBlock(8, 8, 1, nn.BatchNorm2d, nn.ReLU, 4, 1.0, 0.25), (8, 8, 8)),
    (8, 8, 8),
)
add(
    "convnext",
    _vision(
        lambda m: m.ConvNeXt([m.convnext.CNBlockConfig(8, 16, 1), m.convnext.CNBlockConfig(16, None, 1)], num_classes=4)
    ),
    SMALL,
)
add("vit", _vision(lambda m: m.VisionTransformer(16, 8, 1, 2, 8, 16, num_classes=4)), SMALL)
add("swin", _vision(lambda m: m.SwinTransformer([4, 4], 8, [2], [2], [2, 2], num_classes=4)), SMALL)
add(
    "swin_v2_block",
    _vision(lambda m: m.swin_transformer.SwinTransformerBlockV2(8, 2, [2, 2], [1, 1]), (4, 4, 8)),
    (4, 4, 8),
)
add("maxvit_attention", _vision(lambda m: m.maxvit.RelativePositionalMultiHeadAttention(8, 4, 4), (2, 4, 8)), (2, 4, 8))
add("fcn_head", _vision(lambda m: m.segmentation.fcn.FCNHead(8, 2), (8, 6, 6)), (8, 6, 6))
add("aspp", _vision(lambda m: m.segmentation.deeplabv3.ASPP(4, [2, 4], 4), (4, 8, 8)), (4, 8, 8))
add("fpn", _vision(lambda m: Pyramid(), (4, 8, 8)), (4, 8, 8))
add(
    "r3d_block",
    _vision(lambda m: m.video.resnet.BasicBlock(4, 4, m.video.resnet.Conv3DSimple), (4, 3, 5, 5)),
    (4, 3, 5, 5),
)


class Pyramid(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        import torchvision

        self.down = nn.Conv2d(4, 8, 3, stride=2, padding=1)
        self.fpn = torchvision.ops.FeaturePyramidNetwork([4, 8], 4)

    def forward(self, x: torch.Tensor) -> Any:
        return self.fpn({"high": x, "low": torch.relu(self.down(x))})["high"]


# ---------------------------------------------------------------------------------------------- transformers

WORDS = (4, 8)
BERT = {
    "vocab_size": 16,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 16,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
GPT = {"vocab_size": 16, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16, "n_ctx": 16}
LLAMA = {
    "vocab_size": 16,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def _text(config: str, model: str, part: Callable[..., nn.Module] = Part, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import transformers

        made = getattr(transformers, model)(getattr(transformers, config)(**options))
        return part(made.eval())

    return make


def _decoder(model: nn.Module) -> nn.Module:
    return Part(model, use_cache=False)


def _relative(model: nn.Module) -> nn.Module:
    return Part(model)


for _name in (
    "Bert",
    "Roberta",
    "Electra",
    "Camembert",
    "Ernie",
    "MobileBert",
    "DebertaV2",
    "RoFormer",
):
    _more: dict[str, Any] = {}
    if _name == "MobileBert":
        _more = {"embedding_size": 8, "true_hidden_size": 8, "intra_bottleneck_size": 8, "num_feedforward_networks": 1}
    if _name in ("Electra", "RoFormer"):
        _more = {"embedding_size": 8}
    add(_name.lower(), _text(f"{_name}Config", f"{_name}Model", **{**BERT, **_more}), WORDS)
add("bert_classifier", _text("BertConfig", "BertForSequenceClassification", **BERT), WORDS)
add(
    "distilbert",
    _text(
        "DistilBertConfig",
        "DistilBertModel",
        vocab_size=16,
        dim=8,
        n_layers=1,
        n_heads=2,
        hidden_dim=16,
        dropout=0.0,
        attention_dropout=0.0,
        max_position_embeddings=16,
    ),
    WORDS,
)
add("albert", _text("AlbertConfig", "AlbertModel", **{**BERT, "embedding_size": 8}), WORDS)
add("xlm_roberta", _text("XLMRobertaConfig", "XLMRobertaModel", **BERT), WORDS)
add(
    "fnet",
    _text(
        "FNetConfig",
        "FNetModel",
        vocab_size=16,
        hidden_size=8,
        num_hidden_layers=1,
        intermediate_size=16,
        max_position_embeddings=16,
        hidden_dropout_prob=0.0,
    ),
    WORDS,
)
add("gpt2", _text("GPT2Config", "GPT2Model", _decoder, **GPT), WORDS)
add(
    "gpt_neo",
    _text(
        "GPTNeoConfig",
        "GPTNeoModel",
        _decoder,
        vocab_size=16,
        hidden_size=8,
        num_layers=1,
        num_heads=2,
        attention_types=[[["global"], 1]],
        max_position_embeddings=16,
    ),
    WORDS,
)
add(
    "gpt_neox",
    _text(
        "GPTNeoXConfig",
        "GPTNeoXModel",
        _decoder,
        vocab_size=16,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
    ),
    WORDS,
)
add(
    "opt",
    _text(
        "OPTConfig",
        "OPTModel",
        _decoder,
        vocab_size=16,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        ffn_dim=16,
        word_embed_proj_dim=8,
        max_position_embeddings=16,
    ),
    WORDS,
)
add("llama", _text("LlamaConfig", "LlamaModel", _decoder, **LLAMA), WORDS)
add("mistral", _text("MistralConfig", "MistralModel", _decoder, **LLAMA), WORDS)
add("qwen2", _text("Qwen2Config", "Qwen2Model", _decoder, **LLAMA), WORDS)
add("gemma", _text("GemmaConfig", "GemmaModel", _decoder, **LLAMA, head_dim=4), WORDS)
add(
    "phi",
    _text("PhiConfig", "PhiModel", _decoder, **{**LLAMA, "num_key_value_heads": 2, "partial_rotary_factor": 0.5}),
    WORDS,
)
add("bloom", _text("BloomConfig", "BloomModel", _decoder, vocab_size=16, hidden_size=8, n_layer=1, n_head=2), WORDS)
add(
    "t5_encoder",
    _text(
        "T5Config",
        "T5EncoderModel",
        vocab_size=16,
        d_model=8,
        d_kv=4,
        d_ff=16,
        num_layers=1,
        num_heads=2,
        dropout_rate=0.0,
    ),
    WORDS,
)
for _name in ("ViT", "DeiT", "Beit"):
    add(
        f"{_name.lower()}_hf",
        _text(
            f"{_name}Config",
            f"{_name}ForImageClassification",
            Image,
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            image_size=16,
            patch_size=8,
            hidden_dropout_prob=0.0,
        ),
        SMALL,
    )
add(
    "convnextv2",
    _text(
        "ConvNextV2Config",
        "ConvNextV2ForImageClassification",
        Image,
        num_stages=1,
        hidden_sizes=[8],
        depths=[1],
        image_size=16,
    ),
    SMALL,
)
add(
    "poolformer",
    _text(
        "PoolFormerConfig",
        "PoolFormerForImageClassification",
        Image,
        num_encoder_blocks=1,
        depths=[1],
        hidden_sizes=[8],
        patch_sizes=[7],
        strides=[4],
        padding=[2],
    ),
    SMALL,
)
add(
    "segformer",
    _text(
        "SegformerConfig",
        "SegformerForImageClassification",
        Image,
        num_encoder_blocks=1,
        depths=[1],
        sr_ratios=[2],
        hidden_sizes=[8],
        num_attention_heads=[2],
        mlp_ratios=[2],
        strides=[4],
        patch_sizes=[7],
    ),
    SMALL,
)
