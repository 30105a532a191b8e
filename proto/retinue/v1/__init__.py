"""The wire of the mesh: messages and stubs generated from the .proto files beside them, never edited."""
