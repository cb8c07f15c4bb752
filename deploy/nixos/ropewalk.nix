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
      default = "sha256-nzjOOH+f/hyKnZilseoRLeNvgO+S8YOe6C5XnaUOL+o=";
      description = "Hash of the Go modules of this clone (make nix-hash). If it is another's, the build prints the right one.";
    };
    keepRules = lib.mkOption {
      type = lib.types.bool;
      default = false;
      description = ''
        Whether systemd-networkd keeps routing rules that it has not made itself, of any program: it has no such setting for single rules.
        For tunnels that have the default route, on hosts with systemd-networkd.
      '';
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
    systemd.network.config.networkConfig = lib.mkIf cfg.keepRules { ManageForeignRoutingPolicyRules = lib.mkDefault false; };
    systemd.services = lib.mapAttrs' (name: interface: lib.nameValuePair "ropewalk-${name}" {
      description = "ropewalk tunnel ${name}";
      wantedBy = [ "multi-user.target" ];
      wants = [ "network-online.target" "nss-lookup.target" ];
      after = [ "network-online.target" "nss-lookup.target" ];
      path = [ pkgs.nftables pkgs.openresolv pkgs.getent pkgs.iproute2 ];
      serviceConfig = {
        # deploy/systemd/ropewalk@.service gives the reasons. Further settings go into systemd.services."ropewalk-wg0".serviceConfig: DNS keys
        # need ReadWritePaths = [ "/etc" ], since openresolv writes there.
        Type = "notify";
        NotifyAccess = "all";
        ExecStart = "${lib.getExe cfg.package} up ${interface.args} ${name}";
        ExecReload = "${lib.getExe cfg.package} reload ${name}";
        ExecStop = "${lib.getExe cfg.package} down ${name}";
        ExecStopPost = "-${pkgs.runtimeShell} -c '[ \"$$SERVICE_RESULT\" = success ] || exec ${lib.getExe cfg.package} down ${name}'";
        Restart = "on-failure";
        RestartSec = "1s";
        TimeoutStartSec = "infinity";
        TimeoutStopSec = "45s";
        WatchdogSec = "90s";
        LoadCredential = [ "private-key:ropewalk.${name}.private-key" ];
        RuntimeDirectory = "wireguard ropewalk";
        RuntimeDirectoryPreserve = "yes";
        LimitNOFILE = "65536";
        LimitMEMLOCK = "infinity";
        LimitCORE = "0";
        MemoryMax = "50%";
        OOMScoreAdjust = "-500";
        IgnoreSIGPIPE = "yes";
        CapabilityBoundingSet = [ "CAP_NET_ADMIN" "CAP_NET_RAW" "CAP_BPF" "CAP_PERFMON" "CAP_SYS_NICE" "CAP_NET_BIND_SERVICE" ];
        NoNewPrivileges = "yes";
        ProtectSystem = "strict";
        ReadWritePaths = [ "-/etc/wireguard" "/run" "-/proc/sys/net" ];
        ProtectHome = "yes";
        PrivateTmp = "yes";
        DevicePolicy = "closed";
        DeviceAllow = [ "/dev/net/tun rw" ];
        ProtectProc = "invisible";
        ProtectClock = "yes";
        ProtectHostname = "yes";
        ProtectKernelLogs = "yes";
        ProtectKernelModules = "yes";
        ProtectKernelTunables = "yes";
        ProtectControlGroups = "yes";
        RestrictAddressFamilies = [ "AF_UNIX" "AF_NETLINK" "AF_INET" "AF_INET6" "AF_XDP" ];
        RestrictNamespaces = "yes";
        RestrictRealtime = "yes";
        RestrictSUIDSGID = "yes";
        LockPersonality = "yes";
        MemoryDenyWriteExecute = "yes";
        KeyringMode = "private";
        RemoveIPC = "yes";
        SystemCallArchitectures = "native";
        SystemCallFilter = [ "@system-service" "bpf" ];
        SystemCallErrorNumber = "EPERM";
        UMask = "0077";
      };
    }) cfg.interfaces;
  };
}
