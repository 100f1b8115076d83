//! The temporary folder that holds the clusters of one run.

use std::fs::{self, DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;

/// Name of a cluster's socket, in the cluster's folder. The port is part of
/// the name and nothing more; every cluster has a folder to itself.
pub const SOCKET: &str = ".s.PGSQL.5432";
pub const PORT: u16 = 5432;

const REMOVAL_DEADLINE: Duration = Duration::from_secs(15);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The folder. It is removed when this is dropped, also after an error or a signal.
#[derive(Debug)]
pub struct Workspace {
    path: PathBuf,
}

impl Workspace {
    /// Makes a new folder in `parent`.
    pub async fn create(parent: &Path) -> anyhow::Result<Self> {
        let failed = || cannot_create(parent);
        let folder = tempfile::Builder::new()
            .prefix("pinpoint-bench-")
            // The account of the servers may be another one; it only passes through.
            .permissions(Permissions::from_mode(0o711))
            .tempdir_in(fs::canonicalize(parent).with_context(failed)?)
            .with_context(failed)?;
        Ok(Self {
            path: folder.keep(),
        })
    }

    /// Makes the folder for one cluster, closed to other users: whoever reaches
    /// the socket in it is let in.
    pub fn create_folder(&self, name: &str) -> anyhow::Result<PathBuf> {
        let folder = self.path.join(name);
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
    /// The last processes of a program that was stopped may still be writing.
    fn drop(&mut self) {
        let deadline = Instant::now() + REMOVAL_DEADLINE;
        while let Err(error) = fs::remove_dir_all(&self.path)
            && self.path.exists()
        {
            if Instant::now() >= deadline {
                let folder = self.path.display();
                return eprintln!("warning: could not remove {folder}: {error}");
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn a_workspace_is_removed_when_dropped() {
        let parent = tempfile::tempdir().unwrap();
        let workspace = Workspace::create(parent.path()).await.unwrap();
        let cluster = workspace.create_folder("stock").unwrap();
        fs::write(cluster.join("file"), "content").unwrap();
        let entries = || fs::read_dir(parent.path()).unwrap().count();
        assert_eq!(entries(), 1);
        drop(workspace);
        assert_eq!(entries(), 0);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn the_folder_of_a_cluster_is_closed_to_others() {
        let parent = tempfile::tempdir().unwrap();
        let workspace = Workspace::create(parent.path()).await.unwrap();
        let cluster = workspace.create_folder("stock").unwrap();
        let mode = fs::metadata(cluster).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
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
