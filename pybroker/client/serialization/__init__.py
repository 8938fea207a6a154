"""Keys and values as Python objects: serializers, deserializers, JSON, Avro and schema registries."""
