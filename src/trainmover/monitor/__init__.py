"""What a person sees of a job: the live view, the report, the timeline and the picture. No torch."""
