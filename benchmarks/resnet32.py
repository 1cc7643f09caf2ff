"""ResNet-32 on CIFAR-10, pretrained, encrypted at 128 bits; `--help` lists the options."""

from cifar_resnet import main

if __name__ == "__main__":
    main(32)
