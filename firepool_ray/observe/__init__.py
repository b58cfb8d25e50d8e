"""What people and scrapers see of the pool. Reads values handed to it; changes nothing."""
