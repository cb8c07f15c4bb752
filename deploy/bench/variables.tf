# SPDX-License-Identifier: Apache-2.0
# The variables of all clouds: each directory has a link to this file. run.sh sets them.

variable "type" {
  description = "Type of both instances, of prices.csv."
  type        = string
}

variable "architecture" {
  description = "Architecture of that type: amd64 or arm64."
  type        = string
}

variable "from" {
  description = "The only IPv4 addresses that reach ssh, as a prefix. It is your own address with /32."
  type        = string
  validation {
    condition     = can(regex("^((25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])[.]){3}(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])/(2[4-9]|3[0-2])$", var.from))
    error_message = "Want your own IPv4 address, such as 192.0.2.7/32: /24 at most."
  }
}

variable "public_key" {
  description = "The key for root, as in authorized_keys."
  type        = string
}

variable "hours" {
  description = "After that many hours the instances power themselves off."
  type        = number
  validation {
    condition     = var.hours >= 1 && var.hours <= 12 && floor(var.hours) == var.hours
    error_message = "Want 1 to 12, without a fraction."
  }
}

locals {
  user_data = templatefile("${path.module}/../cloud-init.yaml", {
    public_key = trimspace(var.public_key)
    end        = formatdate("YYYY-MM-DD hh:mm:ss 'UTC'", timeadd(plantimestamp(), "${var.hours}h"))
  })
}
