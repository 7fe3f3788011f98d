"""The quickstart's page: facts gathered from what the job left, and one HTML file that needs nothing else."""
