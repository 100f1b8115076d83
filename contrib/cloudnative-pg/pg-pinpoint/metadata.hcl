metadata = {
  name                     = "pg-pinpoint"
  sql_name                 = "pg_pinpoint"
  image_name               = "pg-pinpoint"
  licenses                 = ["PostgreSQL"]
  shared_preload_libraries = ["pg_pinpoint"]
  postgresql_parameters    = {}
  extension_control_path   = []
  dynamic_library_path     = []
  ld_library_path          = []
  bin_path                 = []
  env                      = {}
  auto_update_os_libs      = false
  required_extensions      = []
  create_extension         = true

  versions = {
    trixie = {
      "18" = {
        package = "1.1.0-1"
        sql     = "1.1"
      }
    }
  }
}
