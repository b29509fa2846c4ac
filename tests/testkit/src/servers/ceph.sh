# A Ceph cluster of one node on loopback: monitor, manager, one store, S3 gateway, file system.
# Arguments: folder, port of the monitor, port of the gateway, access key, secret.
# Every daemon stays in this session, so that it ends with it; nothing lies outside the folder.
set -euo pipefail
trap 'trap "" TERM; kill -KILL $(jobs -p); wait; exit' TERM
folder=$1 monitor=$2 gateway=$3 access=$4 secret=$5
cd "$folder"
mkdir -p mon mgr osd mds rgw run mount
fsid=$(cat /proc/sys/kernel/random/uuid)

cat >ceph.conf <<CONF
[global]
fsid = $fsid
mon host = [v2:127.0.0.1:$monitor]
mon initial members = a
public addr = 127.0.0.1
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
keyring = $folder/keyring
run dir = $folder/run
admin socket = $folder/run/\$name.\$pid.asok
log to stderr = false
log file = $folder/\$name.log
mon data = $folder/mon
mgr data = $folder/mgr
osd data = $folder/osd
mds data = $folder/mds
rgw data = $folder/rgw
# One copy on one disk is enough for what is thrown away.
osd pool default size = 1
osd pool default min size = 1
osd crush chooseleaf type = 0
osd pool default pg num = 8
osd pool default pgp num = 8
osd pool default pg autoscale mode = off
mon allow pool size one = true
mon warn on pool no redundancy = false
# The monitor ends itself where a share of the disk of this many percent or less is free. What the
# tests write is bounded, so the share says nothing: a build may have filled a large disk.
mon data avail crit = -1
mon data avail warn = -1
mgr initial modules =
osd objectstore = bluestore
# A sparse file: it takes what is put into it.
bluestore block size = 12884901888
bluestore block create = true
bluestore fsck on mount = false
osd memory target = 1073741824
rgw frontends = beast endpoint=127.0.0.1:$gateway
CONF
export CEPH_CONF=$folder/ceph.conf

allow=(--cap mon 'allow *' --cap osd 'allow *' --cap mds 'allow *' --cap mgr 'allow *')
ceph-authtool --create-keyring keyring --gen-key -n mon. --cap mon 'allow *'
for name in client.admin mgr.x osd.0 mds.a client.rgw.a; do
    ceph-authtool keyring --gen-key -n "$name" "${allow[@]}"
done
monmaptool --create --clobber --fsid "$fsid" --addv a "[v2:127.0.0.1:$monitor]" monmap
ceph-mon --mkfs -i a --monmap monmap --keyring keyring
ceph-mon -f -i a &
ceph --connect-timeout 60 -s
ceph-mgr -f -i x &
uuid=$(cat /proc/sys/kernel/random/uuid)
ceph osd new "$uuid" 0
ceph-osd -i 0 --mkfs --osd-uuid "$uuid"
ceph-osd -f -i 0 &
echo $! >osd.pid
radosgw -f -n client.rgw.a &
radosgw-admin user create --uid=test --display-name=test --access-key="$access" --secret-key="$secret"
ceph osd pool create meta 8
ceph osd pool create data 8
ceph fs new fs meta data
ceph-mds -f -i a &
until_so() { until "$@"; do read -r -t 0.1 _ <> <(:) || true; done; }
serves_files() { ceph mds stat | grep -q up:active; }
serves_objects() { (exec 4<>"/dev/tcp/127.0.0.1/$gateway") 2>/dev/null; }
until_so serves_files
ceph-fuse -f -n client.admin "$folder/mount" &
until_so mountpoint -q mount
until_so serves_objects
touch ready
wait
