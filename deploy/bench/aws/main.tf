# SPDX-License-Identifier: Apache-2.0
# Two instances in a cluster placement group, in the default VPC. Power-off terminates them, with their disks.

terraform {
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "6.32.1"
    }
  }
}

provider "aws" {
  region = "us-east-1"
}

data "aws_vpc" "default" {
  default = true
}

resource "aws_placement_group" "pair" {
  name     = "ropewalk-bench"
  strategy = "cluster"
}

resource "aws_security_group" "pair" {
  name   = "ropewalk-bench"
  vpc_id = data.aws_vpc.default.id

  ingress {
    protocol    = "tcp"
    from_port   = 22
    to_port     = 22
    cidr_blocks = [var.from]
  }
  ingress {
    protocol  = "-1"
    from_port = 0
    to_port   = 0
    self      = true
  }
  egress {
    protocol    = "-1"
    from_port   = 0
    to_port     = 0
    cidr_blocks = ["0.0.0.0/0"]
  }
}

resource "aws_instance" "host" {
  count                                = 2
  ami                                  = "resolve:ssm:/aws/service/canonical/ubuntu/server/24.04/stable/current/${var.architecture}/hvm/ebs-gp3/ami-id"
  instance_type                        = var.type
  availability_zone                    = "us-east-1a"
  placement_group                      = aws_placement_group.pair.name
  vpc_security_group_ids               = [aws_security_group.pair.id]
  associate_public_ip_address          = true
  instance_initiated_shutdown_behavior = "terminate"
  user_data                            = local.user_data

  metadata_options {
    http_tokens = "required"
  }
  tags = {
    Name = "ropewalk-bench"
  }
}

output "public" {
  value = join(" ", aws_instance.host[*].public_ip)
}

output "private" {
  value = join(",", aws_instance.host[*].private_ip)
}

output "mtu" {
  value = "1280,8920"
}
