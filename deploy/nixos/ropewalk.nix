# SPDX-License-Identifier: Apache-2.0
# A NixOS module: imports = [ ./ropewalk.nix ]; services.ropewalk.interfaces.wg0 = { };
# Each interface is /etc/wireguard/NAME.conf, which stays outside of the Nix store, where everybody could read its keys.
{ config, lib, pkgs, ... }:
let
  cfg = config.services.ropewalk;
  package = pkgs.buildGoModule {
    pname = "ropewalk";
    version = "0.1.0";
    src = lib.cleanSource ../..;
    subPackages = [ "cmd/ropewalk" ];
    vendorHash = cfg.vendorHash;
    env.CGO_ENABLED = "0";
    doCheck = false; # the tests need root and TUN devices
    meta = {
      description = "WireGuard-compatible datapath that uses all NIC queues and cores";
      license = lib.licenses.asl20;
      platforms = lib.platforms.linux;
      mainProgram = "ropewalk";
    };
  };
in
{
  options.services.ropewalk = {
    package = lib.mkOption {
      type = lib.types.package;
      default = package;
      description = "The package with bin/ropewalk.";
    };
    vendorHash = lib.mkOption {
      type = lib.types.nullOr lib.types.str;
      default = lib.fakeHash;
      description = "Hash of the Go modules. The first build prints the right one.";
    };
    interfaces = lib.mkOption {
      default = { };
      description = "Tunnels to bring up at boot, each from /etc/wireguard/NAME.conf.";
      type = lib.types.attrsOf (lib.types.submodule {
        options.args = lib.mkOption {
          type = lib.types.str;
          default = "";
          example = "--metrics 127.0.0.1:9820";
          description = "Arguments of ropewalk up.";
        };
      });
    };
  };

  config = lib.mkIf (cfg.interfaces != { }) {
    boot.kernelModules = [ "tun" ];
    environment.systemPackages = [ cfg.package ];
    networking.networkmanager.unmanaged = map (name: "interface-name:${name}") (lib.attrNames cfg.interfaces);
    systemd.network.config.networkConfig.ManageForeignRoutingPolicyRules = lib.mkDefault false;
    systemd.services = lib.mapAttrs' (name: interface: lib.nameValuePair "ropewalk-${name}" {
      description = "ropewalk tunnel ${name}";
      wantedBy = [ "multi-user.target" ];
      wants = [ "network-online.target" "nss-lookup.target" ];
      after = [ "network-online.target" "nss-lookup.target" ];
      path = [ pkgs.nftables pkgs.openresolv pkgs.iproute2 ];
      serviceConfig = {
        Type = "notify";
        NotifyAccess = "all";
        ExecStart = "${lib.getExe cfg.package} up ${interface.args} ${name}";
        ExecReload = "${lib.getExe cfg.package} reload ${name}";
        ExecStop = "${lib.getExe cfg.package} down ${name}";
        Restart = "on-failure";
        RestartSec = 1;
        TimeoutStartSec = "infinity";
        WatchdogSec = 90;
        RuntimeDirectory = "wireguard ropewalk";
        RuntimeDirectoryPreserve = true;
        LimitNOFILE = 65536;
        LimitMEMLOCK = "infinity";
        LimitCORE = 0;
      };
    }) cfg.interfaces;
  };
}
