# shellcheck shell=bash
# Runs a command on an emulated machine for ARCH, which has a kernel of its own. qemu also runs single
# programs for another processor, but it adds a thread to each of them, and the kernel is that of this
# machine: pg_pinpoint_decoding is not active then. The caller has sourced servers.sh.

KERNEL_PACKAGES=(initramfs-tools iproute2 mount) # and the kernel
MACHINE_MEMORY=4G
DISK_SIZE=16G # most of it is not written to, and takes no space

# Run a command as root in the checkout, and exit with its exit code. Arguments: the folder with the release,
# in which all packages are that the command needs; what env gets, without spaces.
run_on_machine() {
	local folder=$1 image status code
	shift

	is_installed qemu-system-arm || {
		apt_update qemu-system-arm
		apt_install qemu-system-arm
	} || return
	compgen -G "$folder/boot/vmlinuz-*" >/dev/null || {
		run run_in_folder "$folder" apt-get update -q &&
			run run_in_folder "$folder" apt-get install -q -y --no-install-recommends \
				"linux-image-cloud-$ARCH" "${KERNEL_PACKAGES[@]}"
	} || return

	image=$(mktemp /var/tmp/pinpoint-machine.XXXXXX) # 3 GB
	status=$(mktemp)
	# shellcheck disable=SC2064 # these files
	trap "rm -f '$image' '$status'" EXIT
	# The folder and, under its own path, the checkout.
	# shellcheck disable=SC2016 # variables of the shell inside
	run as_root flock "$folder/.lock" unshare --mount --propagation private bash -euc '
		mkdir -p "$1/$2"
		mount --bind "$2" "$1/$2"
		truncate -s "$3" "$4"
		mke2fs -q -t ext4 -d "$1" "$4"
	' bash "$folder" "$ROOT" "$DISK_SIZE" "$image"

	# The processor that has all features that qemu knows, with a cheap hash for signed addresses.
	emulate_machine "$folder" "$image" "$ROOT" PINPOINT_IN_FOLDER=yes "$@" |
		sed -u -e 's/\r$//' -e "/^machine-init: exit code /,\$ { s///w $status" -e 'd }'
	code=$(cat "$status")
	[ -n "$code" ] || die "the machine ended before the command"
	exit "$code"
}

# Arguments: the folder, the image, what machine-init gets.
emulate_machine() {
	local folder=$1 image=$2 command
	shift 2
	command=(qemu-system-aarch64 -machine virt -cpu "max,pauth-impdef=on" -accel "tcg,thread=multi"
		-smp "$(nproc)" -m "$MACHINE_MEMORY" -nographic -no-reboot -nic none
		-kernel "$folder"/boot/vmlinuz-* -initrd "$folder"/boot/initrd.img-*
		-append "root=/dev/vda rw console=ttyAMA0 panic=-1 quiet init=$ROOT/script/lib/machine-init -- $*"
		-drive "file=$image,format=raw,if=virtio,cache=unsafe" -device virtio-rng-pci)
	show "${command[@]}"
	"${command[@]}" </dev/null
}
