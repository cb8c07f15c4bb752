# SPDX-License-Identifier: Apache-2.0
# Two servers with dedicated vCPUs on different machines of one location, with a private network. Servers that are off cost the same:
# only deleting them ends that. The environment has the token of a project for this purpose: HCLOUD_TOKEN.

terraform {
  required_providers {
    hcloud = {
      source  = "hetznercloud/hcloud"
      version = "1.60.0"
    }
  }
}

resource "hcloud_placement_group" "pair" {
  name = "ropewalk-bench"
  type = "spread" # there is no other
}

resource "hcloud_network" "pair" {
  name     = "ropewalk-bench"
  ip_range = "10.77.0.0/16"
}

resource "hcloud_network_subnet" "pair" {
  network_id   = hcloud_network.pair.id
  type         = "cloud"
  network_zone = "eu-central"
  ip_range     = "10.77.0.0/24"
}

# It does not apply to the private network.
resource "hcloud_firewall" "ssh" {
  name = "ropewalk-bench"

  rule {
    direction  = "in"
    protocol   = "tcp"
    port       = "22"
    source_ips = [var.from]
  }
}

resource "hcloud_ssh_key" "root" {
  name       = "ropewalk-bench"
  public_key = var.public_key
}

resource "hcloud_server" "host" {
  count              = 2
  name               = "ropewalk-bench-${count.index}"
  server_type        = var.type
  image              = "ubuntu-24.04"
  location           = "fsn1"
  labels             = { ropewalk-bench = "" } # run.sh lists by it
  placement_group_id = hcloud_placement_group.pair.id
  firewall_ids       = [hcloud_firewall.ssh.id]
  ssh_keys           = [hcloud_ssh_key.root.id] # without one, a password is sent by mail
  user_data          = local.user_data
}

resource "hcloud_server_network" "host" {
  count     = 2
  server_id = hcloud_server.host[count.index].id
  subnet_id = hcloud_network_subnet.pair.id
}

output "public" {
  value = join(" ", hcloud_server.host[*].ipv4_address)
}

output "private" {
  value = join(",", hcloud_server_network.host[*].ip)
}

output "mtu" {
  value = "1280,1390" # the private network has 1450
}
