//! (room)

/// Serves until a stop signal.
pub fn run(settings: crate::config::Settings) -> Result<(), String> {
    Err(format!("{} models are configured, and this build has no server yet", settings.models.len()))
}
