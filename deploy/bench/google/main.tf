# SPDX-License-Identifier: Apache-2.0
# Two instances with a compact placement policy, in a network of their own. Google deletes them after var.hours, whatever runs on them.
# The environment names the project: GOOGLE_PROJECT.

terraform {
  required_providers {
    google = {
      source  = "hashicorp/google"
      version = "7.15.0"
    }
  }
}

provider "google" {
  region = "us-central1"
  zone   = "us-central1-a"
}

resource "google_compute_network" "pair" {
  name                    = "ropewalk-bench"
  auto_create_subnetworks = false
  mtu                     = 8896
}

resource "google_compute_subnetwork" "pair" {
  name          = "ropewalk-bench"
  network       = google_compute_network.pair.id
  ip_cidr_range = "10.77.0.0/24"
}

resource "google_compute_firewall" "ssh" {
  name          = "ropewalk-bench-ssh"
  network       = google_compute_network.pair.id
  source_ranges = [var.from]

  allow {
    protocol = "tcp"
    ports    = ["22"]
  }
}

resource "google_compute_firewall" "pair" {
  name          = "ropewalk-bench"
  network       = google_compute_network.pair.id
  source_ranges = [google_compute_subnetwork.pair.ip_cidr_range]

  allow {
    protocol = "all"
  }
}

resource "google_compute_resource_policy" "pair" {
  name = "ropewalk-bench"

  group_placement_policy {
    collocation = "COLLOCATED"
  }
}

resource "google_compute_instance" "host" {
  count             = 2
  name              = "ropewalk-bench-${count.index}"
  machine_type      = var.type
  resource_policies = [google_compute_resource_policy.pair.id]

  boot_disk {
    initialize_params {
      type  = "pd-balanced" # C3 refuses the default
      image = "ubuntu-os-cloud/ubuntu-2404-lts-${var.architecture}"
    }
  }
  network_interface {
    subnetwork = google_compute_subnetwork.pair.id
    nic_type   = "GVNIC"

    access_config {}
  }
  scheduling {
    automatic_restart           = false
    on_host_maintenance         = "TERMINATE"
    instance_termination_action = "DELETE"

    max_run_duration {
      seconds = var.hours * 3600
    }
  }
  metadata = {
    user-data              = local.user_data
    block-project-ssh-keys = "true"
    enable-oslogin         = "false"
  }
}

output "public" {
  value = join(" ", google_compute_instance.host[*].network_interface[0].access_config[0].nat_ip)
}

output "private" {
  value = join(",", google_compute_instance.host[*].network_interface[0].network_ip)
}

output "mtu" {
  value = "1280,8800"
}
