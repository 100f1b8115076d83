//! The temporary folder that holds the clusters of one run.
//!
//! It is removed when the run ends, also by an error or a signal. A run that is
//! killed with SIGKILL cannot do so; then the next run does. To tell a folder
//! in use from an abandoned one, its owner holds a lock on the file `owner` in
//! it. The kernel drops that lock with its process, so that no process number,
//! which might be somebody else's by now, has to be believed.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid};
use tokio::net::UnixStream;

const PREFIX: &str = "pinpoint-bench-";
const OWNER: &str = "owner";

/// Name of a cluster's socket, in the cluster's folder. The port is part of
/// the name and nothing more; every cluster has a folder to itself.
pub const SOCKET: &str = ".s.PGSQL.5432";
pub const PORT: u16 = 5432;

/// What every supported system can put in a `sockaddr_un`, less the final null.
const MAX_SOCKET_PATH: usize = 103;

const REMOVAL_DEADLINE: Duration = Duration::from_secs(15);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub struct Workspace {
    path: PathBuf,
    /// Holds the lock that tells other runs to leave this folder alone.
    _owner: File,
}

impl Workspace {
    /// Removes what killed runs have left in `parent`, then makes a new folder there.
    pub async fn create(parent: &Path) -> anyhow::Result<Self> {
        let failed = || cannot_create(parent);
        let parent = &fs::canonicalize(parent).with_context(failed)?;
        remove_abandoned(parent).await;

        let path = tempfile::Builder::new()
            .prefix(PREFIX)
            // The account of the servers may be another one; it only passes through.
            .permissions(Permissions::from_mode(0o711))
            .tempdir_in(parent)
            .with_context(failed)?;
        let owner = take_ownership(path.path()).with_context(failed)?;
        Ok(Self {
            path: path.keep(),
            _owner: owner,
        })
    }

    /// Makes the folder for one cluster, closed to other users: whoever reaches
    /// the socket in it is let in.
    pub fn create_folder(&self, name: &str) -> anyhow::Result<PathBuf> {
        let folder = self.path.join(name);
        ensure!(
            folder.join(SOCKET).as_os_str().len() <= MAX_SOCKET_PATH,
            "the path {} is too long for a socket ({MAX_SOCKET_PATH} bytes): \
             name a shorter one with --temp-dir",
            folder.display()
        );
        let created = DirBuilder::new().mode(0o700).create(&folder);
        created.with_context(|| cannot_create(&folder))?;
        Ok(folder)
    }
}

fn cannot_create(folder: &Path) -> String {
    format!(
        "could not make a temporary folder in {}: name another with --temp-dir",
        folder.display()
    )
}

impl Drop for Workspace {
    fn drop(&mut self) {
        remove_folder(&self.path);
    }
}

/// The lock is taken before the file has its name, so that the file is never
/// seen unlocked while its owner lives.
fn take_ownership(folder: &Path) -> io::Result<File> {
    let unnamed = folder.join("owner.new");
    let owner = File::create_new(&unnamed)?;
    owner.try_lock()?;
    fs::rename(&unnamed, folder.join(OWNER))?;
    Ok(owner)
}

/// Stops the servers and removes the folders of runs that were killed. What
/// cannot be read, locked or removed is another's business, or the next run's.
async fn remove_abandoned(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else {
        return;
    };
    for entry in entries.flatten() {
        if !entry
            .file_name()
            .as_encoded_bytes()
            .starts_with(PREFIX.as_bytes())
        {
            continue;
        }
        let folder = entry.path();
        let is_own_folder = fs::symlink_metadata(&folder)
            .is_ok_and(|metadata| metadata.is_dir() && metadata.uid() == Uid::effective().as_raw());
        if !is_own_folder {
            continue;
        }
        // Held until the folder is gone: another run may have found it as well.
        let Ok(owner) = File::options().write(true).open(folder.join(OWNER)) else {
            continue;
        };
        if owner.try_lock().is_err() {
            continue;
        }
        eprintln!(
            "warning: an earlier run was killed; removing what it left in {}",
            folder.display()
        );
        for cluster in subfolders(&folder) {
            stop_abandoned_server(&cluster).await;
        }
        remove_folder(&folder);
    }
}

/// Stops the server whose socket is in `folder`, if there is one.
///
/// The kernel tells which process listens there. That it runs under the
/// account that owns the folder shows that it is the server and not something
/// that a link leads to.
async fn stop_abandoned_server(folder: &Path) {
    let deadline = Instant::now() + REMOVAL_DEADLINE;
    while let Some(server) = listening_process(folder).await {
        let signal = if Instant::now() < deadline {
            Signal::SIGQUIT
        } else {
            Signal::SIGKILL
        };
        if kill(server, signal) == Err(Errno::EPERM) {
            return;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

async fn listening_process(folder: &Path) -> Option<Pid> {
    let owner = fs::symlink_metadata(folder).ok()?.uid();
    let stream = UnixStream::connect(folder.join(SOCKET)).await.ok()?;
    let credentials = stream.peer_cred().ok()?;
    // 0 stands for a process of another namespace, for kill(2) for our own group.
    let pid = credentials.pid().filter(|&pid| pid > 1)?;
    (credentials.uid() == owner).then(|| Pid::from_raw(pid))
}

fn subfolders(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

/// Removes the clusters first: as long as the file `owner` is there, a removal
/// that is cut short can be taken up by a later run. The last processes of a
/// killed server may still be writing, hence the patience.
fn remove_folder(folder: &Path) {
    let deadline = Instant::now() + REMOVAL_DEADLINE;
    loop {
        let removed = subfolders(folder)
            .iter()
            .try_for_each(fs::remove_dir_all)
            .and_then(|()| fs::remove_dir_all(folder));
        match removed {
            Ok(()) => return,
            Err(error) if error.kind() == io::ErrorKind::NotFound && !folder.exists() => return,
            Err(error) if Instant::now() >= deadline => {
                eprintln!("warning: could not remove {}: {error}", folder.display());
                return;
            }
            Err(_) => std::thread::sleep(POLL_INTERVAL),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_workspace_is_removed_when_dropped() {
        let parent = tempfile::tempdir().unwrap();
        let workspace = Workspace::create(parent.path()).await.unwrap();
        let cluster = workspace.create_folder("stock").unwrap();
        fs::write(cluster.join("file"), "content").unwrap();
        assert_eq!(entries(parent.path()).len(), 1);
        drop(workspace);
        assert_eq!(entries(parent.path()), [""; 0]);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn the_folder_of_a_cluster_is_closed_to_others() {
        let parent = tempfile::tempdir().unwrap();
        let workspace = Workspace::create(parent.path()).await.unwrap();
        let cluster = workspace.create_folder("stock").unwrap();
        assert_eq!(fs::metadata(cluster).unwrap().mode() & 0o777, 0o700);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn only_abandoned_workspaces_are_removed() {
        let parent = tempfile::tempdir().unwrap();

        let abandoned = parent.path().join("pinpoint-bench-abandoned");
        fs::create_dir_all(abandoned.join("stock/data")).unwrap();
        drop(take_ownership(&abandoned).unwrap());

        // Not made by us, as nobody ever owned it.
        fs::create_dir(parent.path().join("pinpoint-bench-notes")).unwrap();

        // A link to a folder elsewhere that looks abandoned.
        let elsewhere = tempfile::tempdir().unwrap();
        drop(take_ownership(elsewhere.path()).unwrap());
        std::os::unix::fs::symlink(elsewhere.path(), parent.path().join("pinpoint-bench-link"))
            .unwrap();

        let in_use = Workspace::create(parent.path()).await.unwrap();
        let in_use_name = in_use
            .path
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned();
        assert!(!abandoned.exists());

        let other = Workspace::create(parent.path()).await.unwrap();
        drop(other);
        let mut expected = [
            in_use_name,
            "pinpoint-bench-link".to_owned(),
            "pinpoint-bench-notes".to_owned(),
        ];
        expected.sort();
        assert_eq!(entries(parent.path()), expected);
        assert_eq!(entries(elsewhere.path()), [OWNER]);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_path_too_long_for_a_socket_is_refused() {
        let parent = tempfile::tempdir().unwrap();
        let long = parent.path().join("n".repeat(MAX_SOCKET_PATH));
        fs::create_dir(&long).unwrap();
        let workspace = Workspace::create(&long).await.unwrap();
        let error = workspace.create_folder("stock").unwrap_err();
        assert!(
            error.to_string().contains("too long for a socket"),
            "{error}"
        );
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_missing_parent_names_the_remedy() {
        let error = Workspace::create(Path::new("/nowhere")).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "could not make a temporary folder in /nowhere: name another with --temp-dir"
        );
    }
}
